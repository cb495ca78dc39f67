--[[
scan: a page of an index of records.

  ARGV[1] kind    ARGV[2] name of the index    ARGV[3], ARGV[4] the ends, as ZRANGEBYLEX has them, lower first
  ARGV[5] how many at most    ARGV[6] '1' to read backwards, else ''    ARGV[7..] the fields of a record
  returns records as member, fields, member, fields ...; a member is "place NUL id"
]]
local index, found = P .. 'index:' .. ARGV[1] .. ':' .. ARGV[2], {}
local members
if ARGV[6] == '' then
  members = call('ZRANGEBYLEX', index, ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
else
  members = call('ZREVRANGEBYLEX', index, ARGV[4], ARGV[3], 'LIMIT', 0, ARGV[5])
end
for _, member in ipairs(members) do
  found[#found + 1] = member
  found[#found + 1] = call('HMGET', P .. 'record:' .. ARGV[1] .. ':' .. string.match(member, '%z(.*)$'), unpack(ARGV, 7))
end
return found
