#!lua
-- begin: a runner takes a ticket out of its queue and starts it.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] ticket  [5] number of the host's NPU seats, '' if the load needs none
-- ARGV[6] type that the seats are for, '' any  [7…] models that are stopped for the load
-- Returns 'begun' | 'held' (others have the NPU) | 'dropped' (no waiter is left) | 'gone' | 'busy' (another load is in
-- progress) | 'needed' (a copy that was to go as spare) | 'fenced' | 'unknown'. Repeating it for a started ticket returns
-- 'begun' again, since the first response may have been lost.
-- Invariant: at most one load per host is in progress (host field `loading`); a ticket leaves the queue once. The NPU
-- goes from the models that are stopped to the load in one step; until they are gone, both are its holders. A spare copy
-- (field spare_ms) leaves another one that is loaded. Of n copies, the next one goes spare_ms / n later at the earliest:
-- only the load without this copy tells whether a further one is spare.
-- include tickets
local h, id = ARGV[2], ARGV[4]
local host, key = P .. 'host:' .. h, P .. 'ticket:' .. ARGV[4]
local o = owner(h, ARGV[3])
if o == 'ok' and not awake(redis.call('HGET', host, 'state')) then o = 'unknown' end
if o ~= 'ok' then return o end
local t = hash(key)
if not t or t.host ~= h or not pending(t.state) then
  redis.call('LREM', P .. 'queue:' .. h, 0, id)
  return 'gone'
end
if t.state == 'loading' then return 'begun' end
if t.kind == 'load' then
  local other = redis.call('HGET', host, 'loading')
  if other and other ~= id then return 'busy' end
  if t.background ~= '1' and live_waiters(id) == 0 then
    close(id, 'dropped')
    changed(h)
    announce(id, t, 'dropped')
    return 'dropped'
  end
  if ARGV[5] ~= '' then
    local others, going = 0, {[t.model] = true}
    for i = 7, #ARGV do going[ARGV[i]] = true end
    for _, m in ipairs(npu_holders(h)) do
      local ty = redis.call('HGET', P .. 'model:' .. h .. ':' .. m, 'type')
      if not going[m] and (ARGV[6] == '' or not ty or ty == ARGV[6]) then others = others + 1 end
    end
    if others >= tonumber(ARGV[5]) then return 'held' end
    take_npu(h, t.model)
    redis.call('HSET', key, 'npu', '1')
  end
  redis.call('HSET', host, 'loading', id)
end
if t.spare_ms then
  local others, needed = {}, redis.call('HGET', P .. 'model:' .. h .. ':' .. t.model, 'needed_ms')
  for _, other in ipairs(redis.call('SMEMBERS', P .. 'copies:' .. t.model)) do
    if other ~= h and is_loaded(other, t.model) then others[#others + 1] = other end
  end
  if #others == 0 or not needed or NOW - tonumber(needed) < tonumber(t.spare_ms) then return 'needed' end
  local since = math.floor(NOW - t.spare_ms + t.spare_ms / (#others + 1))
  for _, other in ipairs(others) do
    local record = P .. 'model:' .. other .. ':' .. t.model
    if tonumber(redis.call('HGET', record, 'needed_ms') or '0') < since then redis.call('HSET', record, 'needed_ms', num(since)) end
  end
end
redis.call('LREM', P .. 'queue:' .. h, 0, id)
redis.call('SADD', P .. 'begun:' .. h, id)
redis.call('HSET', key, 'state', 'loading', 'begun_ms', num(NOW))
changed(h)
publish({kind = 'ticket', ticket = id, host = h, model = t.model, state = 'loading'})
return 'begun'
