#!lua
-- model_put: a runner writes the records of models that it is loading, has loaded or is draining.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] models, JSON array of {id, fields} (type is required; used_age_ms: as in put_model)
-- Returns 'ok' | 'fenced' | 'unknown' (also for a host that is not awake) | 'no type'.
-- Invariant: only the host's own generation writes; the LRU place never moves back.
-- include models
local h, models = ARGV[2], cjson.decode(ARGV[4])
local o = owner(h, ARGV[3])
if o == 'ok' and not awake(redis.call('HGET', P .. 'host:' .. h, 'state')) then o = 'unknown' end
if o ~= 'ok' then return o end
if not has_types(models) then return 'no type' end
put_models(h, models)
for _, m in ipairs(models) do publish({kind = 'model', host = h, model = m.id, state = m.fields.state}) end
return 'ok'
