#!lua flags=allow-oom
-- model_drop: a runner found that the model's process has ended.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] model  [5] reason  [6] 1 for an eviction
-- Returns 'ok' | 'fenced' | 'unknown'.
-- Invariant: a slot becomes free in Redis only after its process has ended.
-- include models
local h, m = ARGV[2], ARGV[4]
local o = owner(h, ARGV[3])
if o ~= 'ok' then return o end
drop_model(h, m)
if ARGV[6] == '1' then redis.call('HINCRBY', P .. 'stats', 'evictions_total', 1) end
changed(h)
publish({kind = 'model', host = h, model = m, state = 'unloaded', reason = ARGV[5]})
return 'ok'
