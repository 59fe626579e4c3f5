#!lua flags=allow-oom
-- leave: the last request of a gateway that waited for a ticket has gone.
-- KEYS[1] prefix
-- ARGV[2] gateway  [3] ticket  [4] 1 if the load should continue without a waiter (its wait timed out)
-- Returns 'left' (also for a ticket that has ended: its model need not wait for the gateway) |
-- 'dropped' | 'gone' (the ticket does not exist, or has ended and the gateway had no place in it).
-- Invariant: a load with another waiter, a background load and a started load are never dropped.
-- include tickets
local id = ARGV[3]
local t = hash(P .. 'ticket:' .. id)
if not t then return 'gone' end
local waited = redis.call('ZREM', P .. 'waiters:' .. id, ARGV[2])
if not pending(t.state) and waited == 0 then return 'gone' end
if ARGV[4] == '1' and pending(t.state) then
  redis.call('HSET', P .. 'ticket:' .. id, 'background', '1')
  t.background = '1'
end
if t.state == 'queued' and t.background ~= '1' and live_waiters(id) == 0 then
  close(id, 'dropped')
  changed(t.host)
  announce(id, t, 'dropped')
  return 'dropped'
end
publish({kind = 'leave', ticket = id, host = t.host, model = t.model, gateway = ARGV[2]})
return 'left'
