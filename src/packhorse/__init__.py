"""packhorse carries long jobs: from "a user pressed the button" to "here is your file"."""
