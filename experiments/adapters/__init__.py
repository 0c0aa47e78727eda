"""Deep Sea, 10 x 10 cells as two views, solved by the agents of other frameworks with MEM's bonus and without."""
