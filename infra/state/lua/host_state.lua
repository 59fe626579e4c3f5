#!lua flags=allow-oom
-- host_state: a runner that shuts down in order reports so, or cancels that while it is still draining.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] state: ready | draining | asleep
-- Returns 'ok' | 'fenced' | 'unknown' (register again; also for ready and draining on a host that is not awake).
-- Invariant: an asleep host has no model records. Its queue keeps loads that somebody waits for, who wakes it again,
-- and background loads. Repeating `asleep` does not undo a wake that has started.
-- include hosts
local h, state = ARGV[2], ARGV[4]
local key = P .. 'host:' .. h
local o = owner(h, ARGV[3])
if o ~= 'ok' then return o end
local was = redis.call('HGET', key, 'state')
if not awake(was) then return state == 'asleep' and 'ok' or 'unknown' end
if was == state then return 'ok' end
redis.call('HSET', key, 'state', state)
changed(h)
if state == 'asleep' then
  forget_host(h)
  for _, id in ipairs(redis.call('LRANGE', P .. 'queue:' .. h, 0, -1)) do
    if redis.call('HGET', P .. 'ticket:' .. id, 'background') ~= '1' and live_waiters(id) == 0 then announce(id, close(id, 'dropped'), 'dropped') end
  end
end
publish({kind = 'host', host = h, state = state})
return 'ok'
