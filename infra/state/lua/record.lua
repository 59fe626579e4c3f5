#!lua
-- record: reads a signed record and the MACs of its fields.
-- KEYS[1] prefix
-- ARGV[2] its key after the prefix  [3] most bytes to return
-- Returns {fields, MACs}, each as from HGETALL and empty if missing; {} if it is not a hash or has more bytes.
-- Invariant: reads only, both in one step.
return signed(ARGV[2], ARGV[3])
