"""The flight recorder: what each actor received and decided, bounded, and there after kill -9."""
