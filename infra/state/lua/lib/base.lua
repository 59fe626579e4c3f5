-- Code that every script includes. Redis builds its functions again in each call, and a thousand hosts beat each
-- second, so what a beat does not need is elsewhere.
-- KEYS[1] is the pool's prefix, `rv:{pool}:`. Every key that a script touches starts with it, so all share one cluster
-- slot.
-- ARGV[1] is the time in ms since the epoch, or 0 to use Redis' own clock (always, outside simulations).
local P = KEYS[1]
local NOW = tonumber(ARGV[1])

-- Nothing touches a pool whose state has another format than FORMAT, the program's. register and catalog_put give it
-- one.
local format = redis.call('GET', P .. 'format')
if format and format ~= FORMAT then
  return redis.error_reply('FORMAT ' .. P .. 'format is ' .. format .. ', and this program speaks format ' .. FORMAT)
end

local NOW_US = NOW * 1000
if NOW == 0 then
  local t = redis.call('TIME')
  NOW_US = t[1] * 1000000 + t[2]
  NOW = math.floor(NOW_US / 1000)
end

-- LOST_MS equals LostAfter in Go.
local LOST_MS = 10000

-- num formats a whole number without an exponent.
local function num(n) return string.format('%.0f', n) end

-- hash returns a whole hash as a table, or nil if the key does not exist.
local function hash(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then return nil end
  local out = {}
  for i = 1, #flat, 2 do out[flat[i]] = flat[i + 1] end
  return out
end

-- awake reports whether a runner serves a host in this state.
local function awake(state) return state == 'ready' or state == 'draining' end

-- overdue reports whether an awake host has been silent for too long; seen is its field seen_ms.
local function overdue(seen) return NOW - tonumber(seen or '0') > LOST_MS end

-- pending reports whether a ticket in this state has no outcome yet.
local function pending(state) return state == 'queued' or state == 'loading' end

-- LEFT_MS is how long after a driver accepted a sleep a machine that nobody saw turned off may still be shutting down.
local LEFT_MS = 120000

-- stopping reports whether a host's machine is being turned off: a sweep holds its stop, or left it a short while ago
-- after the driver had accepted. Its runner, which may still be alive, must not serve again.
local function stopping(h)
  local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'stop_ms', 'left_ms', 'sleep_token')
  if awake(f[1]) then return false end
  if f[3] and NOW - tonumber(f[3]) < LEFT_MS then return true end
  if f[1] ~= 'asleep' or not f[2] then return false end
  local lease = redis.call('HMGET', P .. 'wake:' .. h, 'token', 'exp_ms')
  return lease[1] == f[4] and tonumber(lease[2] or '0') >= NOW
end
