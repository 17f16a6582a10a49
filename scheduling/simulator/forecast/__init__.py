"""When waiting jobs will start: run times that are likely, and the engine run forward with them."""
