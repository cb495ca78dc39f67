--[[
What `commit`, `put` and `take` do to records. It is put in front of each of them, behind lib.lua.

  record:{kind}:{id}     hash: stamp, body, and where there is one: note, attempts, due_at, lane, job, and index
                         (name NUL place NUL name NUL place NUL ...)
  index:{kind}:{name}    sorted set of "place NUL id", all at score 0: the order is that of the bytes of the place
  due:{kind}:{lane}      sorted set of ids, by when they are due
  job:{id}:records       set of "kind id": what goes with the job
]]
local function record_key(kind, id)
  return P .. 'record:' .. kind .. ':' .. id
end

local function record_library()
  local FACTS = {'index', 'lane', 'due_at', 'job', 'note'}

  -- The stamp that the record carries; 0 if there is no such record.
  local function stamp_of(kind, id)
    return tonumber(call('HGET', record_key(kind, id), 'stamp') or 0)
  end

  local function each_place(kind, id, index, act)
    for name, place in string.gmatch(index or '', '(%Z*)%z(%Z*)%z') do
      act(P .. 'index:' .. kind .. ':' .. name, place .. '\0' .. id)
    end
  end

  local function move_places(kind, id, was, now)
    if (was or '') == now then return end
    each_place(kind, id, was, function(key, member) call('ZREM', key, member) end)
    each_place(kind, id, now, function(key, member) call('ZADD', key, 0, member) end)
  end

  -- Write the record whole, without a note. Facts that are '' are left out of the hash; `attempts` '' leaves the count.
  local function put_record(kind, id, body, index, lane, due, attempts, job)
    local key = record_key(kind, id)
    local was = call('HMGET', key, unpack(FACTS))
    move_places(kind, id, was[1], index)
    if was[3] and (due == '' or (was[2] or '') ~= lane) then call('ZREM', P .. 'due:' .. kind .. ':' .. (was[2] or ''), id) end
    if due ~= '' then call('ZADD', P .. 'due:' .. kind .. ':' .. lane, due, id) end
    if was[4] and was[4] ~= job then call('SREM', P .. 'job:' .. was[4] .. ':records', kind .. ' ' .. id) end
    if job ~= '' then call('SADD', P .. 'job:' .. job .. ':records', kind .. ' ' .. id) end
    local fields = {'body', body}
    if attempts ~= '' then fields = {'body', body, 'attempts', attempts} end
    for i, value in ipairs({index, lane, due, job, ''}) do
      if value ~= '' then
        fields[#fields + 1] = FACTS[i]
        fields[#fields + 1] = value
      elseif was[i] then
        call('HDEL', key, FACTS[i])
      end
    end
    call('HSET', key, unpack(fields))
    return call('HINCRBY', key, 'stamp', 1)
  end

  local function note_record(kind, id, note, index)
    local key = record_key(kind, id)
    local was = call('HMGET', key, 'stamp', 'index', 'due_at', 'lane')
    if not was[1] then return end
    move_places(kind, id, was[2], index)
    if was[3] then
      call('ZREM', P .. 'due:' .. kind .. ':' .. (was[4] or ''), id)
      call('HDEL', key, 'due_at')
    end
    call('HSET', key, 'note', note, 'index', index)
    call('HINCRBY', key, 'stamp', 1)
  end

  local function drop_record(kind, id)
    local key = record_key(kind, id)
    local was = call('HMGET', key, unpack(FACTS))
    move_places(kind, id, was[1], '')
    if was[3] then call('ZREM', P .. 'due:' .. kind .. ':' .. (was[2] or ''), id) end
    if was[4] then call('SREM', P .. 'job:' .. was[4] .. ':records', kind .. ' ' .. id) end
    call('DEL', key)
  end

  local function drop_records_of(job)
    for _, named in ipairs(call('SMEMBERS', P .. 'job:' .. job .. ':records')) do
      drop_record(string.match(named, '^(%S*) (.*)$'))
    end
  end

  return {
    stamp_of = stamp_of, put_record = put_record, note_record = note_record, drop_record = drop_record,
    drop_records_of = drop_records_of,
  }
end

local library

-- Made when a script needs it first: most commits write no record.
local function records()
  library = library or record_library()
  return library
end
