#!lua
-- wake: the holder of a host's power lease keeps it, or gives it up with the reason why the host does not start.
-- KEYS[1] prefix
-- ARGV[2] host  [3] token  [4] verb: renew | leave | failed (refused) | overdue (it did not register in time)
-- [5] lease ms (renew)  [6] code (failed, overdue)  [7] message (same)
-- Returns 'ok' | 'lost' (another holds the lease) | 'awake' (the runner has registered: the lease is over).
-- Invariant: only the token's holder acts on the lease. A failed wake fails the tickets that wait for the host; an
-- overdue one also leaves its machine, which may be on, for a sweep to turn off. A lease that its holder leaves (it is
-- shutting down) is free for any waiter.
-- include tickets days
local h, key = ARGV[2], P .. 'wake:' .. ARGV[2]
if awake(redis.call('HGET', P .. 'host:' .. h, 'state')) then return 'awake' end
if redis.call('HGET', key, 'token') ~= ARGV[3] then return 'lost' end
if ARGV[4] == 'renew' then
  redis.call('HSET', key, 'exp_ms', num(NOW + tonumber(ARGV[5])))
  redis.call('PEXPIRE', key, 3600000)
  return 'ok'
end
redis.call('DEL', key)
if ARGV[4] == 'leave' then
  redis.call('HSET', P .. 'host:' .. h, 'state', 'asleep')
  changed(h)
  publish({kind = 'host', host = h, state = 'asleep', reason = 'left'})
  return 'ok'
end
redis.call('HSET', P .. 'host:' .. h, 'state', 'asleep', 'error', ARGV[7], 'failed_ms', num(NOW))
if ARGV[4] == 'overdue' then redis.call('HSET', P .. 'host:' .. h, 'sleep_token', token(tonumber(ARGV[3]))) end
count_day('host', ARGV[4], h, '1')
changed(h)
for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do
  local t = close(id, 'failed')
  if t then
    redis.call('HSET', P .. 'ticket:' .. id, 'code', ARGV[6], 'message', ARGV[7], 'wake_failed', '1')
    announce(id, t, 'failed')
  else
    redis.call('LREM', P .. 'queue:' .. h, 0, id)
  end
end
publish({kind = 'host', host = h, state = 'asleep'})
return 'ok'
