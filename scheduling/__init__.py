"""Jobs and where they run."""

from scheduling import compiled

compiled.use()
