-- Reads one entry unless it is larger than the one that is wanted.
--
-- KEYS[1]  mm:<pool>:<signature>:<key>
-- ARGV[1]  field
-- ARGV[2]  most bytes
--
-- Returns the value; false if there is none; the value's length, a number, if it is too large.
-- Invariant: reads only.
local n = redis.call('HSTRLEN', KEYS[1], ARGV[1])
if n > tonumber(ARGV[2]) then
  return n
end
return redis.call('HGET', KEYS[1], ARGV[1])
