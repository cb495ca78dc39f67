--[[
sweep: a page of an index by time or by text, with the jobs its members belong to.

  ARGV[1] now, or '' for the server's own time
  ARGV[2] the index, or a worker
  ARGV[3] 'past' for what is over by now, 'all', 'held' for what the worker holds, or a time: what lies after it, the latest
          first
  ARGV[4] members to pass over    ARGV[5] members at most    ARGV[6..] the fields of a job
  returns the time, then members and the fields of their jobs, flat
]]
local now, index, from, most = clock(ARGV[1]), P .. ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local members
if ARGV[3] == 'past' then
  members = call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', from, most)
elseif ARGV[3] == 'held' then
  members = leases_of(ARGV[2], from, most)
elseif ARGV[3] == 'all' then
  members = call('ZRANGE', index, from, from + most - 1)
else
  members = call('ZREVRANGEBYSCORE', index, '+inf', '(' .. ARGV[3], 'LIMIT', from, most)
end
local found = {instant(now)}
for _, member in ipairs(members) do
  found[#found + 1] = member
  found[#found + 1] = call('HMGET', P .. 'job:' .. job_of(member), unpack(ARGV, 6))
end
return found
