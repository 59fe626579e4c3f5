#!lua
-- renew: a gateway keeps its places in the tickets it waits for and reads their state.
-- KEYS[1] prefix
-- ARGV[2] gateway  [3] waiter lease ms  [4] power lease ms  [5…] tickets, each followed by how many of its requests wait
-- Returns JSON array, one item per ticket in order: {ticket, found, fields, position, waiting, wake} (found false: the ticket is
-- gone, acquire again).
-- Invariant: a waiter that stops renewing is gone within its lease; a power lease whose holder died is taken over here.
-- include hosts
local out = {}
for i = 5, #ARGV, 2 do
  local id = ARGV[i]
  local t = hash(P .. 'ticket:' .. id)
  local item = {ticket = id, found = t ~= nil, position = 0, waiting = 0, wake = ''}
  if t and pending(t.state) then
    redis.call('ZADD', P .. 'waiters:' .. id, num(NOW + tonumber(ARGV[3])), ARGV[2])
    redis.call('HSET', P .. 'ticket:' .. id, 'waiting:' .. ARGV[2], ARGV[i + 1])
    for _, gw in ipairs(redis.call('ZRANGEBYSCORE', P .. 'waiters:' .. id, num(NOW), '+inf')) do
      item.waiting = item.waiting + tonumber(redis.call('HGET', P .. 'ticket:' .. id, 'waiting:' .. gw) or '0')
    end
    if t.kind == 'load' then item.wake = wake_lease(t.host, ARGV[2], ARGV[4]) end
    t = hash(P .. 'ticket:' .. id) -- losing the host just now requeued its started work
    for k, q in ipairs(redis.call('LRANGE', P .. 'queue:' .. t.host, 0, -1)) do if q == id then item.position = k end end
  end
  item.fields = t
  out[#out + 1] = item
end
if #out == 0 then return '[]' end
return cjson.encode(out)
