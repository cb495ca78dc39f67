--[[
claim: start what is most urgent, or reserve it for the few seconds in which the caller decides and commits.

  ARGV[1] now, or '' for the server's own time    ARGV[2] seconds of a reservation
  ARGV[3] entries made ready again or promoted at most
  ARGV[4] (msgpack) {lists of kinds, asks}, an ask being {token of its reservations, which list, start, queue, limit, queue,
          limit ...}; start is {} if the caller decides about everything, or {worker, seconds of a lease, token, token ...}
  ARGV[5] whose work it is                        ARGV[6] version of the state that the caller understands
  ARGV[7..] the fields of a job to be read, limits, lineage and start the last of them
  returns the time, per ask its entries as {queue, kind, rank, entry, token} flat, the token '' for what is only reserved, and
          the jobs as {job, fields} flat, as they are now, without the last three; and per ask 1 if more tasks were parked than a script looks past

A start is made here if the lifecycle has prepared it for the job as it is (field `start` of the job, and hash `starts`: see
store/redis/starts.py).

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

-- What the script reads of a job: once, and what it writes of it is put there, too.
local FIELDS, field = #ARGV - 6, {}
for i = 1, FIELDS do field[ARGV[6 + i]] = i end
local VERSION, LINEAGE, UPDATED, STATE, START = field.version, field.lineage, field.updated_at, field.state, field.start
local LIMITS, MOST_PARKED = field.limits, 500
local rows = {}

local function row_of(job)
  if not rows[job] then
    local row = redis.pcall('HMGET', P .. 'job:' .. job, unpack(ARGV, 7))
    rows[job] = row.err and {} or row  -- a key of another type: nobody can read this job, and it must stop no other
  end
  return rows[job]
end

local function put_into(row, told)
  local at = 1
  while told[at + 1] == 'write' or told[at + 1] == 'clear' do
    local last = at + told[at]
    if told[at + 1] == 'write' then
      row[VERSION], row[LINEAGE], row[UPDATED], row[STATE] = unpack(told, at + 2, at + 5)
      for i = at + 6, last, 2 do
        if field[told[i]] then row[field[told[i]]] = told[i + 1] end
      end
    else
      for i = at + 2, last do
        if field[told[i]] then row[field[told[i]]] = false end
      end
    end
    at = last + 1
  end
end

local WORKER, QUOTED = 2, 10  -- numbers of gaps, as in store/redis/starts.py; and that of the worker within JSON

-- A word with gaps as {its place, the gap that it is}, or {its place, false, its format, the gaps in it}.
local function gap_of(place, parts)
  if #parts == 1 then return {place, parts[1]} end
  local format, numbers = {}, {}
  for n, part in ipairs(parts) do
    if type(part) == 'number' then
      format[n] = '%s'
      numbers[#numbers + 1] = part == WORKER and QUOTED or part
    else
      format[n] = string.gsub(part, '%%', '%%%%')
    end
  end
  return {place, false, table.concat(format), numbers}
end

-- A start that can be filled in many times: its words, and its gaps. Nothing if this script cannot make it.
local function prepare(text)
  local start = cjson.decode(text)
  local schema, entry, basis, deadline, limit = unpack(start, 1, 5)
  if schema > newest then return false end
  local words, gaps = {unpack(start, 6)}, {}
  local next_effect = 1
  while next_effect <= #words do
    if not effects[words[next_effect + 1]] then return false end  -- of a newer packhorse: it must not be made in part
    next_effect = next_effect + words[next_effect] + 1
  end
  for i, word in ipairs(words) do
    if type(word) == 'table' then
      gaps[#gaps + 1] = gap_of(i, word)
      words[i] = ''
    end
  end
  return {
    entry = type(entry) == 'table' and entry[#entry] or entry, basis = basis, deadline = deadline, limit = tonumber(limit),
    schema = '[' .. string.format('%.0f', schema) .. ',', words = words, gaps = gaps,
  }
end

local function fill(start, values)
  local told, gaps = {unpack(start.words)}, start.gaps
  for i = 1, #gaps do
    local gap = gaps[i]
    local only = gap[2]
    if only then
      told[gap[1]] = values[only]
    else
      local of = gap[4]
      if #of <= 5 then
        told[gap[1]] = string.format(gap[3], values[of[1]], values[of[2]], values[of[3]], values[of[4]], values[of[5]])
      else
        local found = {}
        for n, number in ipairs(of) do found[n] = values[number] end
        told[gap[1]] = string.format(gap[3], unpack(found))
      end
    end
  end
  return told
end

local templates = {}  -- by name; false for one that is not there, or that this script cannot make

local function template(name)
  if templates[name] == nil then
    templates[name] = false  -- also if it cannot be read
    local text = call('HGET', P .. 'starts', name)
    if text then templates[name] = prepare(text) end
  end
  return templates[name]
end

-- The start that was prepared for this entry, if the job is still as it was then, with what nobody knew in its gaps.
local function prepared(job, entry, by, token)
  local row = row_of(job)
  local version, state, text = row[VERSION], row[STATE], row[START]
  if not (version and state and text) then return end
  local name, deadline, ready_at, tenant = string.match(text, '^(%x+) (%S+) (%S+) (%S+)$')
  local start
  if name then
    start = version == '1' and template(name)
    if not start or entry ~= job .. start.entry then return end
  else
    start = prepare(text)
    if not start or entry ~= start.entry or start.basis ~= redis.sha1hex(version .. ' ' .. state) then return end
    deadline = start.deadline
  end
  if string.sub(state, 1, #start.schema) ~= start.schema then return end
  if start.limit and now + start.limit <= tonumber(deadline) then deadline = exact(now + start.limit) end
  local lineage = tonumber(string.sub(redis.sha1hex((row[LINEAGE] or '0') .. ' ' .. token), 1, 8), 16)
  return fill(
    start, {token, by[1], at, string.format('%.0f', lineage), deadline, by[2], job, ready_at, tenant, by.quoted}
  )
end

-- The limits of a task, from the field that only jobs with limits have.
local limited = {}

local function uses_of(job, entry)
  local row = row_of(job)
  if not row[LIMITS] then return end
  if not limited[job] then
    local is_read, found = pcall(cjson.decode, row[LIMITS])
    limited[job] = is_read and type(found) == 'table' and found or {}
  end
  return limited[job][string.match(entry, '^%S+ (%S+)')]
end

-- Tasks one after the other, each when the one before was taken: what goes by priority and age, and what takes turns.
local function candidates(queue, names, limit)
  local found, n = most_urgent(queue, names, limit), 0
  if call('EXISTS', P .. 'turns:' .. queue) == 0 then
    return function()
      n = n + 1
      return found[n]
    end
  end
  return function()
    local one, turn = found[n + 1], limits().next_turn(queue, names)
    if turn and one then
      local is_later = one[5] > turn[5] or (one[5] == turn[5] and job_of(one[4]) >= job_of(turn[4]))
      if is_later then return turn end
    end
    if one then
      n = n + 1
      return one
    end
    return turn
  end
end

local reserved, jobs, moved = {}, {}, {}

-- Start it, reserve it, or park it, and say which. The caller finds out from the record whether a damaged key was in the way.
local function take(ask, one, by, token, mine)
  local queue, kind, place, entry = unpack(one, 1, 4)
  local job, given = job_of(entry), ''
  local has_turn, uses = not tonumber(place), uses_of(job, entry)
  if not has_turn then put(zsets, 'ready:' .. queue .. ':' .. kind, entry, false) end
  local full = uses and limits().first_full(uses, entry)
  if full then
    limits().park(queue, kind, place, entry, uses, full)
    return 'parked'
  end
  local is_read, start = false, nil
  if token then is_read, start = pcall(prepared, job, entry, by, token) end
  if is_read and start then
    pcall(make_effects, job, start, 1, #start + 1)
    put_into(row_of(job), start)
    moved[#moved + 1] = job
    given = token
  else
    put(zsets, 'reserved', entry, now + seconds)
    put(hashes, 'reservations', entry, table.concat({ask, has_turn and '0' or place, queue, kind}, '\t'))
    if uses or has_turn then limits().reserve(queue, place, entry, uses and cjson.encode(uses) or '[]', uses or {}) end
    if not row_of(job)[VERSION] and call('EXISTS', P .. 'limits:keys') == 1 then limits().look_at_all() end
  end
  local n = #mine
  mine[n + 1], mine[n + 2], mine[n + 3], mine[n + 4], mine[n + 5] = queue, kind, place, entry, given
  return given == '' and 'reserved' or 'started'
end

local cut = {}  -- per ask, whether so many tasks were parked that there may be more
for i, ask in ipairs(asks) do
  local mine, by, used = {}, ask[3], 2
  if by[1] then by.quoted = string.sub(cjson.encode(by[1]), 2, -2) end
  cut[i] = 0
  for place = 4, #ask, 2 do
    local queue, limit, parked, was_parked = ask[place], ask[place + 1], 0, true
    while was_parked and limit > 0 and parked < MOST_PARKED do  -- what was woken meanwhile may be the most urgent
      was_parked = false
      flush()  -- what an earlier ask took, or what has just become ready
      local next_one = candidates(queue, kinds[ask[2]], limit)
      local one = next_one()
      while one and limit > 0 and parked < MOST_PARKED do
        local how = take(ask[1], one, by, by[used + 1], mine)
        if how == 'started' then used = used + 1 end
        if how == 'parked' then
          was_parked = true
          parked = parked + 1
        else
          limit = limit - 1
        end
        one = limit > 0 and next_one()
      end
    end
    if parked >= MOST_PARKED then cut[i] = 1 end
  end
  reserved[i] = mine
end
flush()
if #moved > 0 then tell(moved, ARGV[5]) end
for job, row in pairs(rows) do
  row[FIELDS], row[FIELDS - 1], row[FIELDS - 2] = nil, nil, nil  -- what only the script needs
  jobs[#jobs + 1] = job
  jobs[#jobs + 1] = row
end
return {instant(now), reserved, jobs, cut}
