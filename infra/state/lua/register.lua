#!lua
-- register: a runner takes over its host's records, at boot and whenever Redis lost them.
-- KEYS[1] prefix
-- ARGV[2] host  [3] boot id  [4] highest generation the runner knows  [5] host fields, JSON object of strings
-- ARGV[6] models held, JSON array of {id, fields}  [7] ticket whose load is in progress here, ''
-- ARGV[8] last generation of this boot, 0 at its first registration
-- Returns {'ok', generation, epoch} | {'no type'} (a model has none) | {'fenced'} (a later boot has registered since,
-- so this call is late or its runner was replaced) | {'stopping'} (its machine is being turned off). Only 'ok' changes
-- anything.
-- Invariant: from here on only this generation writes the host; records of earlier ones are gone, and work that was
-- started but is not in progress here (ARGV[7]) is back at the head of the queue.
-- include hosts days
local h, boot, fields, models, loading = ARGV[2], ARGV[3], cjson.decode(ARGV[5]), cjson.decode(ARGV[6]), ARGV[7]
if not has_types(models) then return {'no type'} end
local key = P .. 'host:' .. h
if stopping(h) and redis.call('HGET', key, 'boot') == boot then return {'stopping'} end
local last = tonumber(redis.call('HGET', key, 'generation') or '0')
local mine = tonumber(ARGV[8])
if mine > 0 and last > mine and redis.call('HGET', key, 'boot') ~= boot then return {'fenced'} end
local machine = redis.call('HGET', key, 'machine')
if machine and fields.machine and machine ~= fields.machine and last >= mine then return {'fenced'} end -- below, a failover lost mine
redis.call('SET', P .. 'format', FORMAT)
local was = redis.call('HMGET', key, 'state', 'driver', 'proven', 'packet_ms')
local generation = token(math.max(last, tonumber(ARGV[4])))

for _, m in ipairs(redis.call('SMEMBERS', P .. 'models:' .. h)) do drop_model(h, m) end
requeue(h, loading)
redis.call('DEL', key, P .. 'wake:' .. h, P .. 'npu:' .. h)
for k, v in pairs(fields) do redis.call('HSET', key, k, v) end
redis.call('HSET', key, 'state', 'ready', 'generation', generation, 'boot', boot, 'seen_ms', num(NOW), 'active_ms', num(NOW))
if was[2] then redis.call('HSET', key, 'driver', was[2]) end
if was[1] == 'waking' and was[4] or was[3] then redis.call('HSET', key, 'proven', '1') end
if was[1] == 'waking' then count_day('host', 'ready', h, '1') end
local t = loading ~= '' and hash(P .. 'ticket:' .. loading)
if t and t.host == h and t.kind == 'load' and pending(t.state) then
  redis.call('LREM', P .. 'queue:' .. h, 0, loading)
  redis.call('SADD', P .. 'begun:' .. h, loading)
  redis.call('HSET', P .. 'ticket:' .. loading, 'state', 'loading')
  redis.call('HSET', key, 'loading', loading)
end
redis.call('SADD', P .. 'hosts', h)
put_models(h, models)
if t and t.npu == '1' and redis.call('HGET', key, 'loading') == loading then take_npu(h, t.model) end
publish({kind = 'host', host = h, state = 'ready'})
return {'ok', generation, epoch()}
