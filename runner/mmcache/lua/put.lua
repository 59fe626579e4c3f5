-- Adds one entry to the hash of its key.
--
-- KEYS[1]  mm:<signature>:<key>
-- ARGV[1]  field: the strong digest of the medium
-- ARGV[2]  value
-- ARGV[3]  time to live of the hash, ms
-- ARGV[4]  most fields of a hash
-- ARGV[5]  1 to replace a value that a reader refused, else 0
--
-- Returns 1 if the value was stored, 0 if the field already has one, -1 if the hash is full.
-- Invariant: a field's value is overwritten only if a reader refused it, and no other field is touched.
local there = redis.call('HEXISTS', KEYS[1], ARGV[1])
if there == 1 and ARGV[5] ~= '1' then
  return 0
end
if there == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
