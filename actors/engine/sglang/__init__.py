"""An engine that is an SGLang server beside its actor."""
