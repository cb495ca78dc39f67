"""Objects as files in a local folder."""
