--[[
limit_states: how keys of limits stand.

  ARGV[1] now, or '' for the server's own time    ARGV[2] holders named at most    ARGV[3] parked tasks counted at most
  ARGV[4] (msgpack) per key {key, name, window}
  returns per key {what an operator has set or '', used, parked, when the oldest start leaves the window or '',
          entry, worker, since, entry, worker, since ...}
]]
local now, holders, most_parked = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function exactly(number)
  return string.format('%.17g', number)
end

-- With each share its own set, and few shares to a limit: those of the first lanes are counted.
local function parked_under(key)
  local base, count = P .. 'parked:' .. key, 0
  for _, group in ipairs(call('SMEMBERS', base)) do
    for _, share in ipairs(call('ZRANGE', base .. ':lanes:' .. group, 0, most_parked - 1)) do
      count = count + call('ZCARD', base .. ':tasks:' .. group .. '\t' .. share)
      if count >= most_parked then return most_parked end
    end
  end
  return count
end

local states = {}
for i, asked in ipairs(cmsgpack.unpack(ARGV[4])) do
  local key, name, window = asked[1], asked[2], tonumber(asked[3])
  local state = {call('HGET', P .. 'limits', name) or '', '0', tostring(parked_under(key)), ''}
  if window > 0 then
    local starts, from = P .. 'limits:starts:' .. key, exactly(now - window)
    state[2] = tostring(call('ZCOUNT', starts, from, '+inf'))
    local oldest = call('ZRANGEBYSCORE', starts, from, '(1e15', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if oldest then state[4] = exactly(tonumber(oldest) + window) end
  else
    local holds = P .. 'limits:holds:' .. key
    state[2] = tostring(call('ZCARD', holds))
    local held = call('ZRANGE', holds, 0, holders - 1, 'WITHSCORES')
    for n = 1, #held, 2 do
      local holder = call('HGET', P .. 'holders', held[n]) or ''
      state[#state + 1] = held[n]
      state[#state + 1] = string.match(holder, '\t(.*)$') or ''
      state[#state + 1] = held[n + 1]
    end
  end
  states[i] = state
end
return states
