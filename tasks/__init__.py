"""What runs on workers: the functions that futures call, and the contracts that driver and workers share.

Acting: `play` (one game, start to end) uses `game` (the environment), `agents` (who answers), `prompts` and
`action_samplers`; `host` keeps a worker's games on one event loop beside its `engine`.
Storing: `shards` holds the Arrow schemas that `pipeline.episode_store` writes and everyone reads.
Nothing here imports `pipeline`.
"""
