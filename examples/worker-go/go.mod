module worker-go

go 1.19
