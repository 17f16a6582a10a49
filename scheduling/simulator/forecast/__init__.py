"""When waiting jobs will start: likely run times, and the engine run ahead with them."""
