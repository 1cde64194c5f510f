"""The agent actor: user code runs here, one coroutine for each episode."""
