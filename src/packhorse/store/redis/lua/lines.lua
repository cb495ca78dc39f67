--[[
lines: read the log of a job from a number on, or from its end back to there.

  ARGV[1] job    ARGV[2] the number before the first    ARGV[3] lines at most    ARGV[4] the stage, or ''
  ARGV[5] 1: the newest
  returns the lines; the newest first, if these are wanted
]]
local list, after, most, stage = P .. 'log:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local oldest = call('LINDEX', list, 0)
local found = {}
if not oldest then return found end
local first = math.max(0, after + 1 - tonumber(string.match(oldest, '^%d+')))  -- dense: only the oldest are ever dropped

local function take(line)
  -- number attempt time stage[ element]
  if stage == '' or string.match(line, '^%S+ %S+ %S+ ([^ \n]+)') == stage then found[#found + 1] = line end
  return #found == most
end

if ARGV[5] == '1' then
  local last = call('LLEN', list) - 1
  while last >= first do
    local from = math.max(first, last - most + 1)
    local page = call('LRANGE', list, from, last)
    for i = #page, 1, -1 do
      if take(page[i]) then return found end
    end
    last = from - 1
  end
  return found
end
while true do
  local page = call('LRANGE', list, first, first + most - 1)
  for _, line in ipairs(page) do
    if take(line) then return found end
  end
  if #page < most then return found end
  first = first + most
end
