-- Functions on the records of models, their use times and the NPU.
-- include changes

-- drop_copy_if_unused removes a host from the copies of a model if it has neither a record nor a ticket of it any more.
local function drop_copy_if_unused(h, m)
  if redis.call('EXISTS', P .. 'model:' .. h .. ':' .. m) == 1 then return end
  for _, ids in ipairs({redis.call('LRANGE', P .. 'queue:' .. h, 0, -1), redis.call('SMEMBERS', P .. 'begun:' .. h)}) do
    for _, id in ipairs(ids) do
      if redis.call('HGET', P .. 'ticket:' .. id, 'model') == m then return end
    end
  end
  redis.call('SREM', P .. 'copies:' .. m, h)
end

-- is_loaded reports whether host h serves a model's requests.
local function is_loaded(h, m)
  if redis.call('HGET', P .. 'model:' .. h .. ':' .. m, 'state') ~= 'loaded' then return false end
  local f = redis.call('HMGET', P .. 'host:' .. h, 'state', 'seen_ms')
  return f[1] == 'ready' and not overdue(f[2])
end

-- npu:<h> is the lock of a host's NPU: the models that have it, separated by commas. begin takes it, a model's record
-- keeps it, and whatever drops the record or fails the load releases it.

-- npu_holders returns them as a list.
local function npu_holders(h)
  local out = {}
  for m in string.gmatch(redis.call('GET', P .. 'npu:' .. h) or '', '[^,]+') do out[#out + 1] = m end
  return out
end

-- release_npu takes a model out of the holders, and with `again` puts it in once more, as the last one.
local function release_npu(h, m, again)
  local left = {}
  for _, holder in ipairs(npu_holders(h)) do if holder ~= m then left[#left + 1] = holder end end
  if again then left[#left + 1] = m end
  if #left == 0 then redis.call('DEL', P .. 'npu:' .. h) else redis.call('SET', P .. 'npu:' .. h, table.concat(left, ',')) end
end
local function take_npu(h, m) release_npu(h, m, true) end

-- drop_model removes a model from a host: record, LRU place, membership, NPU.
local function drop_model(h, m)
  local ty = redis.call('HGET', P .. 'model:' .. h .. ':' .. m, 'type')
  redis.call('DEL', P .. 'model:' .. h .. ':' .. m)
  redis.call('SREM', P .. 'models:' .. h, m)
  drop_copy_if_unused(h, m)
  if ty then redis.call('ZREM', P .. 'lru:' .. h .. ':' .. ty, m) end
  release_npu(h, m)
end

-- put_model writes a record from a table of strings. used_age_ms, if given, says how long ago the model was used last,
-- and goes to its LRU place, which never moves back; without one, a model that has no place yet counts as used now.
-- REQUIRES: fields.type (has_types), so that nothing fails after the first write.
local function put_model(h, m, fields)
  local key = P .. 'model:' .. h .. ':' .. m
  local was, used = redis.call('HGET', key, 'type'), fields.used_age_ms and NOW - math.max(tonumber(fields.used_age_ms), 0)
  if was and was ~= fields.type then
    used = math.max(used or 0, tonumber(redis.call('ZSCORE', P .. 'lru:' .. h .. ':' .. was, m) or '0'))
    redis.call('ZREM', P .. 'lru:' .. h .. ':' .. was, m)
  end
  fields.used_age_ms = nil
  local flat = {}
  for k, v in pairs(fields) do flat[#flat + 1] = k; flat[#flat + 1] = v end
  redis.call('HSET', key, unpack(flat))
  redis.call('SADD', P .. 'models:' .. h, m)
  if (fields.retired or '') == '' then redis.call('SADD', P .. 'copies:' .. m, h) end
  redis.call('ZADD', P .. 'lru:' .. h .. ':' .. fields.type, used and 'GT' or 'NX', num(used or NOW), m)
  if string.find(fields.device or '', 'npu', 1, true) then take_npu(h, m) end
end

-- has_types reports whether every record has a type and so can be written.
local function has_types(models)
  for _, m in ipairs(models) do
    if type(m.fields) ~= 'table' or type(m.fields.type) ~= 'string' or m.fields.type == '' then return false end
  end
  return true
end

-- put_models writes records, each {id, fields}. REQUIRES: has_types.
local function put_models(h, models)
  changed(h)
  for _, m in ipairs(models) do
    put_model(h, m.id, m.fields)
    if (m.fields.retired or '') == '' then changed(h, m.id) end
  end
end
