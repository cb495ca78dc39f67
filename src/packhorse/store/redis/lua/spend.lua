--[[
spend: count what fits into its windows, and take back what was counted before.

  ARGV[1] now, or '' for the server's own time
  ARGV[2] asks (msgpack), each {at, name, window, amount, limit, name, window, amount, limit ...}
    at      '' to spend; to refund, the time of the spend
    name    the counter's key without the prefix; with another window it is another counter
  returns per ask {time, which charge was refused (from 0; -1 for none), seconds to wait, what is left of each limit ...},
  {} for a refund, or an error's text

A counter is a hash of "window:bucket" -> amount. Every bucket that overlaps the window counts whole. All charges of an ask
are looked at before anything of it is written.
]]
local BUCKETS = 60      -- as in store/counters.py
local MARGIN = 0.001
local now = clock(ARGV[1])

local function bucket_of(window, at)
  return math.floor(at * BUCKETS / tonumber(window))
end

local function field_of(window, bucket)
  return window .. ':' .. string.format('%.0f', bucket)
end

-- What still counts, by bucket, its sum, and the fields that do not count any more.
local function counter(name, window)
  local all, first = call('HGETALL', P .. name), bucket_of(window, now) - BUCKETS
  local buckets, used, stale = {}, 0, {}
  for i = 1, #all, 2 do
    local of, bucket = string.match(all[i], '^(.*):(%d+)$')
    if of == window then
      bucket = tonumber(bucket)
      if bucket >= first then
        buckets[#buckets + 1] = {bucket, tonumber(all[i + 1])}
        used = used + tonumber(all[i + 1])
      else
        stale[#stale + 1] = all[i]
      end
    end
  end
  return {name = name, window = window, buckets = buckets, used = used, added = 0, stale = stale}
end

local function wait(one, excess)
  table.sort(one.buckets, function(a, b) return a[1] < b[1] end)
  for _, bucket in ipairs(one.buckets) do
    excess = excess - bucket[2]
    if excess <= 0 then
      return math.max(0, (bucket[1] + BUCKETS + 1) * tonumber(one.window) / BUCKETS - now) + MARGIN
    end
  end
  return tonumber(one.window)
end

local function add(one)
  local key, lasts = P .. one.name, math.ceil((1 + 2 / BUCKETS) * tonumber(one.window) * 1000)
  call('HINCRBY', key, field_of(one.window, bucket_of(one.window, now)), string.format('%.0f', one.added))
  if #one.stale > 0 then call('HDEL', key, unpack(one.stale)) end
  if call('PTTL', key) < lasts then call('PEXPIRE', key, lasts) end
end

local function spend(ask)
  local counters, charges, refused, seconds = {}, {}, -1, 0
  for i = 2, #ask, 4 do
    local id = ask[i] .. '\t' .. ask[i + 1]
    counters[id] = counters[id] or counter(ask[i], ask[i + 1])
    charges[#charges + 1] = {counters[id], ask[i + 2], ask[i + 3]}
  end
  for i, charge in ipairs(charges) do
    local one, amount, limit = charge[1], charge[2], charge[3]
    one.added = one.added + amount
    if amount > 0 and one.used + one.added > limit then
      refused, seconds = i - 1, wait(one, one.used + one.added - limit)
      break
    end
  end
  local said = {string.format('%.17g', now), refused, string.format('%.17g', seconds)}
  for _, charge in ipairs(charges) do
    local used = charge[1].used + (refused < 0 and charge[1].added or 0)
    said[#said + 1] = string.format('%.0f', math.max(0, charge[3] - used))
  end
  for _, one in pairs(counters) do
    if refused < 0 and one.added > 0 then add(one) end
  end
  return said
end

local function refund(ask)
  for i = 2, #ask, 4 do
    local key, field = P .. ask[i], field_of(ask[i + 1], bucket_of(ask[i + 1], tonumber(ask[1])))
    local left = tonumber(call('HGET', key, field) or 0) - ask[i + 2]
    if left > 0 then call('HSET', key, field, string.format('%.0f', left)) else call('HDEL', key, field) end
  end
  return {}
end

local answers = {}
for i, ask in ipairs(cmsgpack.unpack(ARGV[2])) do
  local is_made, said = pcall(ask[1] == '' and spend or refund, ask)
  answers[i] = is_made and said or tostring(type(said) == 'table' and said.err or said)
end
return answers
