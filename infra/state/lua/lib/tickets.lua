-- Functions on tickets.
-- include models

-- live_waiters counts the waiters of a ticket with a current lease and removes the others.
local function live_waiters(id)
  redis.call('ZREMRANGEBYSCORE', P .. 'waiters:' .. id, '-inf', '(' .. num(NOW))
  return redis.call('ZCARD', P .. 'waiters:' .. id)
end

-- enqueue puts a ticket into host h's queue: before the loads at its end that have a lower priority, a greater number. A
-- ticket that is queued already moves before those that precede it. No load lets more than PASSED others go first.
local PASSED = 8
local function enqueue(h, id, priority)
  local queue = P .. 'queue:' .. h
  local ids, before = redis.call('LRANGE', queue, 0, -1), nil
  local last = #ids
  for i, t in ipairs(ids) do
    if t == id then last = i - 1 end
  end
  for i = last, 1, -1 do
    local f = redis.call('HMGET', P .. 'ticket:' .. ids[i], 'kind', 'priority', 'passed')
    if f[1] ~= 'load' or tonumber(f[2] or '1') <= priority or tonumber(f[3] or '0') >= PASSED then break end
    redis.call('HINCRBY', P .. 'ticket:' .. ids[i], 'passed', 1)
    before = ids[i]
  end
  if before then
    redis.call('LREM', queue, 0, id)
    redis.call('LINSERT', queue, 'BEFORE', before, id)
  elseif last == #ids then
    redis.call('RPUSH', queue, id)
  end
  redis.call('HSET', P .. 'ticket:' .. id, 'priority', num(priority))
end

-- close ends a ticket. It takes the ticket out of the queue and of `wanted`, and keeps it for a minute so that late
-- pollers can read its outcome. It returns the ticket as it was before, or nil if there is none.
local function close(id, state)
  local key = P .. 'ticket:' .. id
  local t = hash(key)
  if not t then return nil end
  redis.call('LREM', P .. 'queue:' .. t.host, 0, id)
  redis.call('SREM', P .. 'begun:' .. t.host, id)
  if redis.call('HGET', P .. 'wanted', t.model) == id then redis.call('HDEL', P .. 'wanted', t.model) end
  if redis.call('HGET', P .. 'host:' .. t.host, 'loading') == id then redis.call('HDEL', P .. 'host:' .. t.host, 'loading') end
  redis.call('HSET', key, 'state', state, 'ended_ms', num(NOW))
  redis.call('PEXPIRE', key, 60000)
  redis.call('PEXPIRE', P .. 'waiters:' .. id, 60000)
  drop_copy_if_unused(t.host, t.model)
  return t
end

-- announce publishes a ticket that close ended; t is what close returned.
local function announce(id, t, state)
  publish({kind = 'ticket', ticket = id, host = t.host, model = t.model, state = state, fields = hash(P .. 'ticket:' .. id)})
end

-- requeue returns everything that host h had started, except ticket keep, to the head of its queue.
local function requeue(h, keep)
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'begun:' .. h)) do
    if id ~= keep then
      redis.call('SREM', P .. 'begun:' .. h, id)
      if redis.call('HGET', P .. 'ticket:' .. id, 'state') == 'loading' then
        redis.call('HSET', P .. 'ticket:' .. id, 'state', 'queued')
        redis.call('LPUSH', P .. 'queue:' .. h, id)
      end
    end
  end
  redis.call('HDEL', P .. 'host:' .. h, 'loading')
end
