#!lua
-- repair: a sweep writes down what nobody is left to write.
-- KEYS[1] prefix
-- ARGV[2] host  [3] verb: lost | stranded  [4] ms that a wake may take (stranded)
-- lost: the runner has been silent for too long: its records go, what it had begun is queued again, the host is lost.
-- stranded: the host was to be woken, did not come in its time, and nobody wants it any more: it is asleep, and as its
-- machine may be up without a runner, a sleep is left to finish (sleep_token).
-- Returns {'ok'} | {'gone'} (nothing to repair).
-- Invariant: a host whose runner may still come or is wanted is left alone.
local h, key = ARGV[2], P .. 'host:' .. ARGV[2]
local f = redis.call('HMGET', key, 'state', 'seen_ms', 'lost_ms', 'waking_ms')
local function become(new, reason)
  redis.call('HSET', key, 'state', new, 'error', reason)
  changed()
  publish({kind = 'host', host = h, state = new, reason = reason})
end
if ARGV[3] == 'lost' then
  if not awake(f[1]) or not presumed_lost(key, f[2], f[3]) then return {'gone'} end
  forget_host(h)
  redis.call('HDEL', key, 'generation', 'lost_ms', 'sleep_token')
  become('lost', 'the runner is silent')
  return {'ok'}
end
local lease = hash(P .. 'wake:' .. h)
local over = NOW - tonumber(f[4] or '0') > tonumber(ARGV[4])
if f[1] ~= 'waking' or not over or redis.call('LLEN', P .. 'queue:' .. h) > 0 or lease and tonumber(lease.exp_ms) >= NOW then return {'gone'} end
redis.call('HSET', key, 'sleep_token', token(lease and tonumber(lease.token) or 0))
redis.call('DEL', P .. 'wake:' .. h)
become('asleep', 'the runner did not come')
return {'ok'}
