--[[
What the scripts share. It is put in front of each of them.

  KEYS[1] the prefix. Every key is made from it, so all of them lie in the prefix's slot of a cluster. It is no key itself
          and must never become one: while a cluster moves the slot it answers a missing key with ASK, which we do not
          follow, and so no script runs where only half of the data is.

An entry names a task of a job: "job stage", or "job stage b12" for the twelfth element (a letter for the number of
digits, so that the order of text is the order of numbers).
]]
local P, call = KEYS[1], redis.call

local FEED = 2500      -- entries of the feed for watchers; a watcher that is further behind reads all jobs again
local PER_ENTRY = 16   -- jobs or items named in one entry
local STREAM = 100      -- entries of each stream for outside readers, with as many items

local function clock(given)
  if given ~= '' then return tonumber(given) end
  local t = call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6
end

local function instant(now)
  return string.format('%.6f', now)
end

local function job_of(entry)
  return string.match(entry, '^%S*')
end

-- Tell watchers which jobs have something new, and whose work it is if that matters. It serves them only: an operator who
-- deleted half of it stops no commit.
local function tell(jobs, by)
  local who = by and by ~= '' and {'by', by} or {}
  for first = 1, math.max(1, #jobs), PER_ENTRY do
    local last = math.min(first + PER_ENTRY - 1, #jobs)
    local n = call('INCR', P .. 'feed:last')
    local named = table.concat(jobs, ' ', first, last)
    local made = redis.pcall('XADD', P .. 'feed', 'MAXLEN', '~', FEED, n .. '-0', 'jobs', named, unpack(who))
    if type(made) == 'table' and made.err then call('DEL', P .. 'feed') end
  end
end

-- What all jobs share (indexes, queues, leases) is put down here first: reads see it, and `flush` writes it with a command
-- or two per key. A hundred jobs that end together cost ten commands then instead of a thousand.
local zsets, hashes = {}, {}   -- by key, per member the score or value to be; false for one that goes
local known = {}               -- by key of a hash, per field what the server said; false for nothing

local function put(boards, key, member, value)
  local board = boards[key]
  if not board then
    board = {}
    boards[key] = board
  end
  board[member] = value
end

local function z_score(key, member)
  local board = zsets[key]
  if board and board[member] ~= nil then return board[member] end
  return tonumber(call('ZSCORE', P .. key, member) or nil)
end

local function h_get(key, field)
  local board, said = hashes[key], known[key]
  if board and board[field] ~= nil then return board[field] end
  if said and said[field] ~= nil then return said[field] end
  return call('HGET', P .. key, field)
end

-- Ask the server about many fields at once, for those who will ask one by one.
local function h_learn(key, fields)
  known[key] = known[key] or {}
  for first = 1, #fields, 1000 do
    local last = math.min(first + 999, #fields)
    for i, value in ipairs(call('HMGET', P .. key, unpack(fields, first, last))) do
      known[key][fields[first + i - 1]] = value
    end
  end
end

local function in_pages(command, key, words)
  for first = 1, #words, 1000 do
    call(command, P .. key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function flush_z(key)
  local adds, drops = {}, {}
  for member, score in pairs(zsets[key] or {}) do
    if score then
      adds[#adds + 1] = score
      adds[#adds + 1] = member
    else
      drops[#drops + 1] = member
    end
  end
  zsets[key] = nil
  in_pages('ZADD', key, adds)
  in_pages('ZREM', key, drops)
end

local function flush_h(key)
  local sets, drops = {}, {}
  for field, value in pairs(hashes[key]) do
    if value then
      sets[#sets + 1] = field
      sets[#sets + 1] = value
    else
      drops[#drops + 1] = field
    end
  end
  hashes[key], known[key] = nil, nil
  in_pages('HSET', key, sets)
  in_pages('HDEL', key, drops)
end

local items = {}  -- by stream, JSON that has not been appended yet

-- What outside readers are told, several items an entry: an entry costs the server 7 us, an item in it half of one.
local function tell_outside(stream, item)
  if not items[stream] then items[stream] = {} end
  table.insert(items[stream], item)
end

-- A stream that somebody has damaged stops nothing.
local function flush_items(stream)
  local waiting = items[stream]
  items[stream] = nil
  for first = 1, #waiting, PER_ENTRY do
    local page = table.concat(waiting, ',', first, math.min(first + PER_ENTRY - 1, #waiting))
    redis.pcall('XADD', P .. stream, 'MAXLEN', '~', STREAM, '*', 'items', '[' .. page .. ']')
  end
end

-- Everything is written although one key may be damaged; that is raised then.
local function flush()
  local failure
  local function try(write, key)
    local is_written, err = pcall(write, key)
    if not is_written then failure = failure or err end
  end
  for key in pairs(zsets) do try(flush_z, key) end
  for key in pairs(hashes) do try(flush_h, key) end
  for stream in pairs(items) do flush_items(stream) end
  if failure then error(failure, 0) end
end

-- Live watchers hear it, and a stream keeps the last of them for who was away.
local function announce(job, message)
  call('PUBLISH', P .. 'progress:' .. job, message)
  tell_outside('queue:progress', '{"job_id":"' .. job .. '","message":' .. message .. '}')
end

local limits  -- makes what limits.lua has, in the scripts that have it

-- The entry may start: into the set of its queue and kind, by rank (the negated priority), then by the text; or it takes turns.
local function make_ready(queue, kind, place, entry)
  local rank = tonumber(place)
  if rank then
    put(zsets, 'ready:' .. queue .. ':' .. kind, entry, rank)
  else
    limits().make_turn(queue, kind, place, entry)
  end
  local job, stage, element = string.match(entry, '^(%S*) (%S+) ?%a?(%d*)$')
  element = element == '' and '0' or element
  tell_outside('queue:' .. queue, '{"job_id":"' .. job .. '","stage":"' .. stage .. '","element":' .. element .. '}')
end

-- What was delayed until now may start, so many entries at most.
local function promote(now, batch)
  for _, delayed in ipairs(call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, batch)) do
    local rank, queue, kind, entry = string.match(delayed, '^([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$')
    make_ready(queue, kind, rank, entry)
    put(zsets, 'due', delayed, false)
    put(zsets, 'queued', entry, false)
  end
  if call('EXISTS', P .. 'limits:wakes', P .. 'due:shared') > 0 then limits().promote(batch) end
end

-- A reservation is over: the entry is where it was before, and no attempt was counted.
local function put_back(entry)
  local held = h_get('reservations', entry)
  if held then
    local rank, queue, kind = string.match(held, '^[^\t]*\t([^\t]*)\t([^\t]*)\t(.*)$')
    local place, uses = limits().end_reservation(entry)
    if place then limits().refund(queue, place) end
    make_ready(queue, kind, place or rank, entry)
    put(hashes, 'reservations', entry, false)
    if uses then limits().let_go(entry, uses) end
  end
  put(zsets, 'reserved', entry, false)
end

-- What a worker holds. As many are walked as tasks run right now: few enough to need no index of their own.
local function leases_of(worker, from, most)
  local found, at = {}, 0
  flush()
  repeat
    local page = call('ZRANGE', P .. 'leases', at, at + 499)
    local held = #page > 0 and call('HMGET', P .. 'holders', unpack(page)) or {}
    for i, entry in ipairs(page) do
      if held[i] and string.match(held[i], '^[^\t]*\t(.*)$') == worker then
        if from > 0 then from = from - 1 else found[#found + 1] = entry end
        if #found == most then return found end
      end
    end
    at = at + 500
  until #page < 500
  return found
end

-- Reservations and leases are kept as "token<tab>facts" under their entry.
local function is_held(hash, entry, token)
  local held = h_get(hash, entry)
  return held and string.sub(held, 1, #token + 1) == token .. '\t'
end
