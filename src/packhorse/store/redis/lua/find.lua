--[[
find: jobs from the newest on, out of one or several indexes that are merged.

  ARGV[1] (msgpack) {indexes, before, limit, budget, tenant, status, pipeline, from, until}; '' where there is nothing to check
  ARGV[2..] the fields of a job; the first five are status, pipeline, created_at, version and tenant
  returns where to go on ('' when the end was reached), jobs as {job, fields} flat, and {index, job} flat of those whose
  record has gone

The indexes are in the order of ids, which is the order of age. Times rise with it, give or take the clocks of those who
made the ids: a time is looked for by halving, and an hour around it is looked at one by one.
]]
local SLACK = 3600
local PAGE = 50
local asked = cmsgpack.unpack(ARGV[1])
local indexes, before, limit, budget = asked[1], asked[2], asked[3], asked[4]
local tenant, status, pipeline, from, till = asked[5], asked[6], asked[7], tonumber(asked[8]), tonumber(asked[9])

local function created(job)
  return tonumber(call('HGET', P .. 'job:' .. job, 'created_at') or '')
end

-- The newest job of the index that is not certainly too young; nil if all are.
local function first_before(index, time)
  local low, high = 0, call('ZCARD', index)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local at = created(call('ZREVRANGE', index, middle, middle)[1])
    if at and at >= time then low = middle + 1 else high = middle end
  end
  return call('ZREVRANGE', index, low, low)[1]
end

local starts = {}
for i, index in ipairs(indexes) do
  starts[i] = before == '' and '+' or '(' .. before
  if till then
    local first = first_before(P .. index, till + SLACK)
    if not first then
      starts[i] = '-'
    elseif before == '' or first < before then
      starts[i] = '[' .. first
    end
  end
end

local function page(size)
  local found, seen, homes = {}, {}, {}
  for i, index in ipairs(indexes) do
    for _, job in ipairs(call('ZREVRANGEBYLEX', P .. index, starts[i], '-', 'LIMIT', 0, size)) do
      if not seen[job] then
        seen[job] = true
        homes[job] = index
        found[#found + 1] = job
      end
    end
  end
  table.sort(found, function(a, b) return a > b end)
  return found, homes
end

local jobs, gone, count = {}, {}, 0
while true do
  local size = math.max(limit - count, PAGE)
  local found, homes = page(size)
  for i = 1, math.min(#found, size) do
    local job = found[i]
    local fields = call('HMGET', P .. 'job:' .. job, unpack(ARGV, 2))
    local at = tonumber(fields[3] or '')
    budget = budget - 1
    if not fields[4] then
      gone[#gone + 1] = homes[job]
      gone[#gone + 1] = job
    elseif from and at < from - SLACK then
      return {'', jobs, gone}
    elseif (status == '' or fields[1] == status) and (pipeline == '' or fields[2] == pipeline)
      and (tenant == '' or fields[5] == tenant)
      and (not from or at >= from) and (not till or at < till) then
      jobs[#jobs + 1] = job
      jobs[#jobs + 1] = fields
      count = count + 1
      if count == limit then return {job, jobs, gone} end
    end
  end
  if #found < size then return {'', jobs, gone} end
  local last = found[size]
  if budget <= 0 then return {last, jobs, gone} end
  for i in ipairs(indexes) do
    -- An index that begins later than this point has not been begun.
    local start = string.sub(starts[i], 2)
    if starts[i] ~= '-' and (starts[i] == '+' or start >= last) then starts[i] = '(' .. last end
  end
end
