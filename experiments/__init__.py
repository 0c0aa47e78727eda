"""Learning studies: what each method gets on which task. Nothing here is shipped."""
