--[[
limit_keys: keys of limits that are in use, in the order of their bytes.

  ARGV[1] keys at most    ARGV[2..] ranges of keys, from and to in turn, as ZRANGEBYLEX takes them
  returns the keys

Those that nobody uses any more are passed over.
]]
local most, found = tonumber(ARGV[1]), {}

local function collect(first, to)
  local page
  repeat
    page = call('ZRANGEBYLEX', P .. 'limits:keys', first, to, 'LIMIT', 0, 500)
    for _, key in ipairs(page) do
      if #found == most then return end
      if call('EXISTS', P .. 'limits:holds:' .. key, P .. 'limits:starts:' .. key, P .. 'parked:' .. key) > 0 then
        found[#found + 1] = key
      end
    end
    first = '(' .. (page[#page] or '')
  until #page < 500
end

for i = 2, #ARGV, 2 do collect(ARGV[i], ARGV[i + 1]) end
return found
