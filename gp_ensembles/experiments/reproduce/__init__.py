"""Commands that draw the papers' figures and make their tables again."""
