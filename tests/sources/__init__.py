"""The documents that packhorse was made from, replayed in their own words: requests, keys, commands, SQL and JSON."""
