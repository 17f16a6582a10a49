"""What would happen if: asked of a state of the engine that is kept current from the rows."""
