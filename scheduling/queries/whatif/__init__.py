"""What-if questions, asked of an engine state that is kept current from the rows."""
