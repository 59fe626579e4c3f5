#!lua
-- forget: a host that the catalog no longer names leaves the pool.
-- KEYS[1] prefix
-- ARGV[2] host  [3] ms without a sign of life, 0 at an operator's request
-- Returns {'ok'} | {'gone'} (it does not exist) | {'wanted'} (it is awake or waking, work is queued, somebody is
-- turning it on or off, or it has shown a sign of life since).
-- Invariant: no key or field of the host remains except the pool's counters and, for a day, the record of the
-- conversations that it has saved.
-- include hosts
local h, key, power = ARGV[2], P .. 'host:' .. ARGV[2], P .. 'wake:' .. ARGV[2]
if redis.call('SISMEMBER', P .. 'hosts', h) == 0 then return {'gone'} end
local f = redis.call('HMGET', key, 'state', 'seen_ms', 'waking_ms', 'failed_ms')
local heard = 0
for i = 2, 4 do heard = math.max(heard, tonumber(f[i] or '0')) end
local exp = tonumber(redis.call('HGET', power, 'exp_ms') or '0')
if f[1] and f[1] ~= 'asleep' and f[1] ~= 'lost' or exp >= NOW or NOW - heard < tonumber(ARGV[3])
  or redis.call('LLEN', P .. 'queue:' .. h) > 0 or redis.call('SCARD', P .. 'begun:' .. h) > 0 then return {'wanted'} end
forget_host(h)
for _, ty in ipairs({'llm', 'embedding', 'reranking', 'audio', 'image', 'tts'}) do redis.call('DEL', P .. 'lru:' .. h .. ':' .. ty) end
redis.call('DEL', key, power, P .. 'models:' .. h)
redis.call('SREM', P .. 'hosts', h)
changed()
publish({kind = 'host', host = h, state = 'forgotten'})
return {'ok'}
