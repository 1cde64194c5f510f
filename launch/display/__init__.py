"""What a person sees while a run goes on: live in a terminal, else one line a step."""
