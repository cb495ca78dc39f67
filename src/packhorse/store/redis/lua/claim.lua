--[[
claim: reserve what is most urgent, for the few seconds in which the caller decides and commits.

  ARGV[1] now, or '' for the server's own time    ARGV[2] seconds of a reservation
  ARGV[3] entries made ready again or promoted at most
  ARGV[4] (msgpack) {lists of kinds, asks}, an ask being {token, which list, queue, limit, queue, limit ...}
  ARGV[5..] the fields of a job to be read
  returns the time, per ask its entries as {queue, kind, rank, entry} flat, and the jobs as {job, fields} flat

First it does what nobody else does: a reservation whose claimer never came back is undone, uncounted, and what was delayed
becomes ready. Both in bounded steps; the next claim goes on.
]]
local now, seconds, batch = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
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

local reserved, jobs, seen = {}, {}, {}
for i, ask in ipairs(asks) do
  local mine = {}
  for at = 3, #ask, 2 do
    local queue, limit = ask[at], ask[at + 1]
    flush()  -- what an earlier ask took, or what has just become ready
    local found = most_urgent(queue, kinds[ask[2]], limit)
    for n = 1, math.min(limit, #found) do
      local one = found[n]
      local entry = one[4]
      put(zsets, 'ready:' .. queue .. ':' .. one[2], entry, false)
      put(zsets, 'reserved', entry, now + seconds)
      put(hashes, 'reservations', entry, ask[1] .. '\t' .. one[3] .. '\t' .. queue .. '\t' .. one[2])
      for field = 1, 4 do mine[#mine + 1] = one[field] end
      local job = job_of(entry)
      if not seen[job] then
        seen[job] = true
        jobs[#jobs + 1] = job
        jobs[#jobs + 1] = call('HMGET', P .. 'job:' .. job, unpack(ARGV, 5))
      end
    end
  end
  reserved[i] = mine
end
flush()
return {instant(now), reserved, jobs}
