--[[
ahead: how many entries of a queue would be claimed before one.

  ARGV[1] now, or '' for the server's own time    ARGV[2] queue    ARGV[3] rank    ARGV[4] entry    ARGV[5] count no further
  returns the number

Each kind's set is in the order of claiming, so the place is found by halving, however long the queue is.
]]
local now, queue, rank, entry, limit = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

-- By bytes, as the server orders them: Lua's own comparison goes by the language of the machine.
local function is_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function place(key)
  local low, high = call('ZCOUNT', key, '-inf', '(' .. rank), call('ZCOUNT', key, '-inf', rank)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(call('ZRANGE', key, middle, middle)[1], entry) then low = middle + 1 else high = middle end
  end
  return low
end

local count = 0
for _, kind in ipairs(call('SMEMBERS', P .. 'kinds:' .. queue)) do
  count = count + place(P .. 'ready:' .. queue .. ':' .. kind)
end
for _, delayed in ipairs(call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, 1000)) do
  local r, q, other = string.match(delayed, '^([^\t]*)\t([^\t]*)\t[^\t]*\t(.*)$')
  if q == queue and (tonumber(r) < rank or (tonumber(r) == rank and is_before(other, entry))) then count = count + 1 end
end
return math.min(count, limit)
