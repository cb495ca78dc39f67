--[[
lines: read the log of a job from a number on.

  ARGV[1] job    ARGV[2] the number before the first    ARGV[3] lines at most    ARGV[4] the stage, or ''
  returns the lines
]]
local list, after, most, stage = P .. 'log:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local oldest = call('LINDEX', list, 0)
local found = {}
if not oldest then return found end
local at = math.max(0, after + 1 - tonumber(string.match(oldest, '^%d+')))  -- dense: only the oldest are ever dropped
while #found < most do
  local page = call('LRANGE', list, at, at + most - 1)
  for _, line in ipairs(page) do
    -- number attempt time stage[ element]
    if stage == '' or string.match(line, '^%S+ %S+ %S+ ([^ \n]+)') == stage then found[#found + 1] = line end
    if #found == most then break end
  end
  if #page < most then break end
  at = at + most
end
return found
