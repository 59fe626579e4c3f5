#!lua
-- repair: a sweep writes what the responsible process can no longer write.
-- KEYS[1] prefix
-- ARGV[2] host  [3] verb: lost | stranded | unseen | orphan  [4] ms that a wake may take (stranded), that the host has
-- been lost (unseen), or between the first sight of an orphan and its end (orphan)  [5] ms that its machine has run (orphan)
-- lost: the runner has been silent for too long. Its records are removed, its started work is queued again, the host is lost.
-- stranded: the host was to be woken, did not register in time, and nobody wants it any more. It is asleep. As its machine may
-- be up without a runner, a sleep remains to be finished (sleep_token).
-- unseen: the host has been lost for that long and has nothing queued. It is asleep, and a sleep remains to be finished, since
-- its machine may still run.
-- orphan: the host's machine runs although the host is asleep or has never registered, and did so ARGV[4] ago, when a
-- sweep noted it in this record. A sleep remains to be finished. Redis may have lost that the host serves: its runner
-- then registers within that time, which removes the note.
-- Returns {'ok'} | {'gone'} (nothing to repair, or noted).
-- Invariant: a host whose runner may still register, or that is wanted, is left alone.
-- include hosts days
local h, key = ARGV[2], P .. 'host:' .. ARGV[2]
local f = redis.call('HMGET', key, 'state', 'seen_ms', 'lost_ms', 'waking_ms', 'sleep_token')
local function end_as(new, reason)
  redis.call('HSET', key, 'state', new, 'error', reason)
  changed(h)
  publish({kind = 'host', host = h, state = new, reason = reason})
end
if ARGV[3] == 'lost' then
  if not awake(f[1]) or not is_presumed_lost(key, f[2], f[3]) then return {'gone'} end
  forget_host(h)
  redis.call('HDEL', key, 'generation', 'lost_ms', 'sleep_token')
  end_as('lost', 'the runner is silent')
  return {'ok'}
end
local lease = hash(P .. 'wake:' .. h)
local idle = redis.call('LLEN', P .. 'queue:' .. h) == 0 and redis.call('SCARD', P .. 'begun:' .. h) == 0 and not (lease and tonumber(lease.exp_ms) >= NOW)
local since, from, why = f[4], 'waking', 'the runner did not come'
if ARGV[3] == 'unseen' then since, from, why = f[2], 'lost', 'the runner was silent for too long' end
local ended = f[1] == from and NOW - tonumber(since or '0') > tonumber(ARGV[4])
if ARGV[3] == 'orphan' then
  ended, why = (not f[1] or f[1] == 'asleep') and not f[5], 'its machine ran without a runner'
end
if not ended or not idle then return {'gone'} end
redis.call('SADD', P .. 'hosts', h)
if ARGV[3] == 'orphan' then
  local noted = redis.call('HGET', key, 'orphan_ms')
  noted = noted and NOW - tonumber(noted)
  if not noted or noted > tonumber(ARGV[5]) then -- the note is from before the machine was started
    redis.call('HSET', key, 'orphan_ms', num(NOW))
    if redis.call('HSETNX', key, 'state', 'asleep') == 1 then changed(h) end
    return {'gone'}
  end
  if noted < tonumber(ARGV[4]) then return {'gone'} end
  redis.call('HDEL', key, 'orphan_ms')
end
redis.call('HSET', key, 'sleep_token', token(lease and tonumber(lease.token) or 0))
redis.call('DEL', P .. 'wake:' .. h)
if ARGV[3] == 'stranded' then count_day('host', 'overdue', h, '1') end
end_as('asleep', why)
return {'ok'}
