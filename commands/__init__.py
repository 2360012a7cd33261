"""Commands of `stagecut`, one module each."""
