"""Where endpoints come from, what they are asked, and what is read out of their answers."""
