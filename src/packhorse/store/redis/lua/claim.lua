--[[
claim: start what is most urgent, or reserve it for the few seconds in which the caller decides and commits.

  ARGV[1] now, or '' for the server's own time    ARGV[2] seconds of a reservation
  ARGV[3] entries made ready again or promoted at most
  ARGV[4] (msgpack) {lists of kinds, asks}, an ask being {token of its reservations, which list, start, queue, limit, queue,
          limit ...}; start is {} if the caller decides about everything, or {worker, seconds of a lease, token, token ...}
  ARGV[5] whose work it is                        ARGV[6] version of the state that the caller understands
  ARGV[7..] the fields of a job to be read
  returns the time, per ask its entries as {queue, kind, rank, entry, token} flat, the token '' for what is only reserved, and
          the jobs as {job, fields} flat, as they are now

A start is made here if the lifecycle has prepared it for the job as it is (field `start`, see store/redis/starts.py).

First it does what nobody else does: a reservation whose claimer never came back is undone, uncounted, and what was delayed
becomes ready. Both in bounded steps; the next claim goes on.
]]
local seconds, batch, newest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[6])
local wanted = cmsgpack.unpack(ARGV[4])
local kinds, asks = wanted[1], wanted[2]

for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'reserved', '-inf', now, 'LIMIT', 0, batch)) do
  put_back(entry)
end

promote(now, batch)

-- An idle claim ends here: one question for all kinds instead of one each.
local function has_any(queue, names)
  local sets = {}
  for i, kind in ipairs(names) do
    sets[i] = P .. 'ready:' .. queue .. ':' .. kind
  end
  return #names < 2 or call('EXISTS', unpack(sets)) > 0
end

-- A short walk per kind: what this worker has no code for can neither hide the rest nor cost anything.
local function most_urgent(queue, names, limit)
  local found, has_one_kind = {}, true
  if not has_any(queue, names) then return found end
  for _, kind in ipairs(names) do
    local head = call('ZRANGE', P .. 'ready:' .. queue .. ':' .. kind, 0, limit - 1, 'WITHSCORES')
    if #found > 0 and #head > 0 then has_one_kind = false end
    for i = 1, #head, 2 do
      found[#found + 1] = {queue, kind, head[i + 1], head[i], tonumber(head[i + 1])}
    end
  end
  if not has_one_kind then
    table.sort(found, function(a, b)
      if a[5] ~= b[5] then return a[5] < b[5] end
      return a[4] < b[4]
    end)
  end
  return found
end

-- A number as short as it can be read back.
local function exact(number)
  for digits = 15, 16 do
    local text = string.format('%.' .. digits .. 'g', number)
    if tonumber(text) == number then return text end
  end
  return string.format('%.17g', number)
end

local at = ARGV[1]
if at == '' then at = (string.gsub(string.gsub(instant(now), '0+$', ''), '%.$', '.0')) end

local WORKER = 2  -- as in store/redis/starts.py

-- The start that was prepared for this entry, if the job is still as it was then, with what nobody knew in its places.
local function prepared(job, entry, by, token)
  local row = call('HMGET', P .. 'job:' .. job, 'version', 'lineage', 'state', 'start')
  if not (row[1] and row[3] and row[4]) then return end
  local start = cjson.decode(row[4])
  local schema, of, basis, deadline, limit = unpack(start, 1, 5)
  if schema > newest or of ~= entry or basis ~= redis.sha1hex(row[1] .. ' ' .. row[3]) then return end
  if limit ~= '' and now + tonumber(limit) <= tonumber(deadline) then deadline = exact(now + tonumber(limit)) end
  local lineage = tonumber(string.sub(redis.sha1hex((row[2] or '0') .. ' ' .. token), 1, 8), 16)
  local values = {token, by[1], at, string.format('%.0f', lineage), deadline, by[2]}
  for i = 6, #start do
    local word = start[i]
    if type(word) == 'table' and #word == 1 then
      start[i] = values[word[1]]
    elseif type(word) == 'table' then
      for n, part in ipairs(word) do
        if type(part) == 'number' then word[n] = part == WORKER and by.quoted or values[part] end
      end
      start[i] = table.concat(word)
    elseif type(word) == 'number' and not effects[start[i + 1]] then
      return  -- of a newer packhorse, which this one must not make in part
    end
  end
  return start
end

local reserved, jobs, seen, moved = {}, {}, {}, {}

-- Start it, or reserve it; whether it was started. The caller finds out from the record whether a damaged key was in the way.
local function take(ask, one, by, token, mine)
  local queue, kind, rank, entry = unpack(one, 1, 4)
  local job, given = job_of(entry), ''
  local is_read, start = false, nil
  if token then is_read, start = pcall(prepared, job, entry, by, token) end
  if is_read and start then
    pcall(make_effects, job, start, 6, #start + 1)
    moved[#moved + 1] = job
    given = token
  else
    put(zsets, 'reserved', entry, now + seconds)
    put(hashes, 'reservations', entry, ask .. '\t' .. rank .. '\t' .. queue .. '\t' .. kind)
  end
  for _, text in ipairs({queue, kind, rank, entry, given}) do mine[#mine + 1] = text end
  seen[job] = true
  return given ~= ''
end

for i, ask in ipairs(asks) do
  local mine, by, used = {}, ask[3], 2
  if by[1] then by.quoted = string.sub(cjson.encode(by[1]), 2, -2) end
  for place = 4, #ask, 2 do
    local queue, limit = ask[place], ask[place + 1]
    flush()  -- what an earlier ask took, or what has just become ready
    local found = most_urgent(queue, kinds[ask[2]], limit)
    for n = 1, math.min(limit, #found) do
      put(zsets, 'ready:' .. queue .. ':' .. found[n][2], found[n][4], false)
      if take(ask[1], found[n], by, by[used + 1], mine) then used = used + 1 end
    end
  end
  reserved[i] = mine
end
flush()
if #moved > 0 then tell(moved, ARGV[5]) end
for job in pairs(seen) do
  local row = redis.pcall('HMGET', P .. 'job:' .. job, unpack(ARGV, 7))
  jobs[#jobs + 1] = job
  jobs[#jobs + 1] = row.err and {} or row  -- a key of another type: nobody can read this job, and it must stop no other
end
return {instant(now), reserved, jobs}
