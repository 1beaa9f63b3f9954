"""What `fedspam theory` and `fedspam measure` compute."""
