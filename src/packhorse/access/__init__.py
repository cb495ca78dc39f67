"""Who may ask and how often: keys, addresses, rates. The HTTP interface stands in front of it, the CLI beside."""
